// How wide text is, near enough to lay labels out without measuring.

/** Width in pixels: a Chinese character is one em, a Latin letter about half. */
export function textWidth(text: string, size = 12): number {
  let em = 0
  for (const c of text) em += /[\u1100-\u11ff\u2e80-\ua4cf\uac00-\ud7af\uf900-\ufaff\ufe30-\ufe4f\uff00-\uff60\u{1f000}-\u{3ffff}]/u.test(c) ? 1 : /[ilj.,:;'|! ]/.test(c) ? 0.3 : /[mwMW@%▁]/.test(c) ? 0.88 : /[A-Z]/.test(c) ? 0.68 : 0.55
  return em * size
}

/** Cut with … so that it fits. */
export function fit(text: string, width: number, size = 12): string {
  if (textWidth(text, size) <= width) return text
  const letters = [...text]
  while (letters.length > 1 && textWidth(letters.join('') + '…', size) > width) letters.pop()
  return letters.join('') + '…'
}
