// What was to be seen is still in the address after the login.
document.querySelector('#login').action = `/login${location.hash}`;
