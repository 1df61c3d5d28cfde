// Runs before the first paint: the theme must not flash, and storage may be forbidden.
(function () {
  "use strict";
  const root = document.documentElement;
  root.dataset.scripts = "on";
  try {
    const theme = localStorage.getItem("tracelens-theme");
    if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  } catch (error) {
    // A sandboxed frame has no storage: the system's theme it is.
  }
  // Whatever goes wrong is said on the page: a silent gap would look like a finding.
  window.addEventListener("error", function (event) {
    root.dataset.error = String(event.message);
  });
  window.addEventListener("unhandledrejection", function (event) {
    root.dataset.error = String(event.reason);
  });
})();
