// A link may carry the token behind "#", which browsers never send: it is put into the form.
const token = decodeURIComponent(location.hash.slice(1));
if (token) {
  history.replaceState(null, "", location.pathname + location.search);
  document.getElementById("token").value = token;
  document.querySelector("form").submit();
}
