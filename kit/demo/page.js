// What HTML alone cannot do: copying, and which parts screen readers read out when they change.
document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  const code = button.parentElement.querySelector("pre");
  const say = (text) => {
    button.textContent = text;
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  };
  const select = () => {  // without TLS browsers give no clipboard: the text is marked instead
    getSelection().selectAllChildren(code);
    say(document.execCommand("copy") ? "Copied" : "Press Ctrl+C");
  };
  if (navigator.clipboard) navigator.clipboard.writeText(code.textContent).then(() => say("Copied"), select);
  else select();
});
new MutationObserver(() => {
  for (const region of document.querySelectorAll(".block.kit-live:not([role])")) {
    region.setAttribute("role", "status");
  }
  for (const field of document.querySelectorAll("[id$=-steps] input, [id$=-guidance] input")) {
    field.inputMode = "decimal";  // which keys a phone shows
  }
}).observe(document.documentElement, { childList: true, subtree: true });
