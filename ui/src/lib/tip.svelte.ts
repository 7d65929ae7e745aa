// The one tooltip of the page: exact values beside the pointer, or beside the keyboard's cursor.

export const tip = $state({ shown: false, x: 0, y: 0, title: '', rows: [] as [string, string][] })

/** `rows` are pairs of a name and its value; `at` is where, in the window. */
export function showTip(at: { clientX: number; clientY: number }, title: string, rows: [string, string][] = []) {
  Object.assign(tip, { shown: true, x: at.clientX, y: at.clientY, title, rows })
}

export const hideTip = () => (tip.shown = false)
