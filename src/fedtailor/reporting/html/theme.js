// Light or dark, before anything is painted: the system's wish until the button is used, which is then remembered
// for this page where the browser allows it.
'use strict';
const root = document.documentElement, system = matchMedia('(prefers-color-scheme: dark)');
const remembered = use => { try { return use(sessionStorage); } catch { return null; } };
const isDark = () => root.dataset.theme === 'dark';

function followSystem() {
  root.dataset.theme = remembered(store => store.getItem('theme')) ?? (system.matches ? 'dark' : 'light');
}

function turnTheme() {
  root.dataset.theme = isDark() ? 'light' : 'dark';
  remembered(store => store.setItem('theme', root.dataset.theme));
}

followSystem();
