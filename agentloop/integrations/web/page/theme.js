/** Light or dark: what the person chose here, or else what the system says. Runs before the first paint. */
(() => {
  const KEY = "agentloop.theme";
  const read = () => {
    try {
      return localStorage.getItem(KEY);
    } catch {
      return null;
    }
  };
  const chosen = read();
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme");
    const dark = () => {
      const { theme } = document.documentElement.dataset;
      return theme ? theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    };
    const say = () => button.setAttribute("aria-label", dark() ? "Use the light theme" : "Use the dark theme");
    button.addEventListener("click", () => {
      const theme = dark() ? "light" : "dark";
      document.documentElement.dataset.theme = theme;
      try {
        localStorage.setItem(KEY, theme);
      } catch {
        // it lasts until the page is left
      }
      say();
    });
    say();
  });
})();
