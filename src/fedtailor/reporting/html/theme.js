// Light or dark, before anything is painted: as the system is, until the button is used. The choice
// is remembered for this page where the browser allows it.
'use strict';
const root = document.documentElement;
const system = matchMedia('(prefers-color-scheme: dark)');

// Use the session's storage, which some browsers refuse to pages from files.
function useStorage(action) {
  try {
    return action(sessionStorage);
  } catch {
    return null;
  }
}

function isDark() {
  return root.dataset.theme === 'dark';
}

function followSystem() {
  const remembered = useStorage(storage => storage.getItem('theme'));
  root.dataset.theme = remembered ?? (system.matches ? 'dark' : 'light');
}

function toggleTheme() {
  root.dataset.theme = isDark() ? 'light' : 'dark';
  useStorage(storage => storage.setItem('theme', root.dataset.theme));
}

followSystem();
