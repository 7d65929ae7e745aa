// Light or dark, as chosen or as the system prefers.

import type { Mode } from './colour'
import { state } from './state.svelte'

const query = (text: string) => (typeof matchMedia === 'undefined' ? null : matchMedia(text))
const dark = query('(prefers-color-scheme: dark)')
const still = query('(prefers-reduced-motion: reduce)')

const system = $state({ dark: dark?.matches ?? false, still: still?.matches ?? false })
dark?.addEventListener('change', (event) => (system.dark = event.matches))
still?.addEventListener('change', (event) => (system.still = event.matches))

export const mode = (): Mode => (state.theme === 'auto' ? (system.dark ? 'dark' : 'light') : state.theme)

/** True where nothing should move. */
export const calm = (): boolean => system.still
