"""n-RASP-L programs into the weights of the looped decoder. Knows the language and the model, no task."""
