// Who answers the page's questions. An exported site has ./local.js here: computed in the browser.
export * from "./server.js";
