// Every drawing can give itself as SVG and as JSON; the export menu shows the drawings that are on the page.

import { untrack } from 'svelte'

import { PAPER } from './colour'
import { mode } from './theme.svelte'

export interface Drawing {
  name: string
  /** A whole <svg …> as text, or the element that is on the page. */
  svg: () => string | SVGSVGElement | null | undefined
  data?: () => unknown
}

let shown = $state.raw<Drawing[]>([])
export const drawings = (): readonly Drawing[] => shown

/** Call while a component is being set up; the drawing leaves with it. */
export function drawing(each: Drawing) {
  $effect(() => {
    untrack(() => (shown = [...shown, each]))
    return () => (shown = shown.filter((other) => other !== each))
  })
}

const STYLES = [
  'fill', 'fill-opacity', 'stroke', 'stroke-width', 'stroke-opacity', 'stroke-dasharray', 'stroke-linecap', 'opacity', 'font-family', 'font-size',
  'font-style', 'font-weight', 'letter-spacing', 'text-anchor', 'dominant-baseline', 'paint-order', 'visibility', 'display', 'image-rendering',
] // prettier-ignore

/** An SVG that stands alone: computed styles written into it, nothing outside needed. */
export function standalone(each: Drawing): string {
  const made = each.svg()
  if (!made) return ''
  if (typeof made === 'string') return made
  const copy = made.cloneNode(true) as SVGSVGElement
  const { width, height } = made.getBoundingClientRect()
  if (!copy.getAttribute('viewBox')) copy.setAttribute('viewBox', `0 0 ${width} ${height}`)
  copy.setAttribute('width', String(width))
  copy.setAttribute('height', String(height))
  copy.setAttribute('xmlns', 'http://www.w3.org/2000/svg')
  const [from, to] = [made, copy].map((root) => [root, ...root.querySelectorAll<SVGElement>('*')])
  from.forEach((source, i) => {
    const style = getComputedStyle(source)
    to[i].setAttribute('style', STYLES.map((name) => `${name}:${style.getPropertyValue(name)}`).join(';'))
    to[i].removeAttribute('class')
  })
  copy.querySelectorAll('[data-screen-only]').forEach((node) => node.remove())
  const [x, y] = copy.getAttribute('viewBox')!.split(/[ ,]+/)
  copy.insertAdjacentHTML('afterbegin', `<rect x="${x}" y="${y}" width="100%" height="100%" fill="${PAPER[mode()]}"/>`)
  return new XMLSerializer().serializeToString(copy)
}

/** The same at twice its size, as PNG. */
export async function png(svg: string): Promise<Blob> {
  const image = new Image()
  image.src = 'data:image/svg+xml;charset=utf-8,' + encodeURIComponent(svg)
  await image.decode()
  const canvas = document.createElement('canvas')
  canvas.width = image.width * 2
  canvas.height = image.height * 2
  canvas.getContext('2d')!.drawImage(image, 0, 0, canvas.width, canvas.height)
  return await new Promise((done) => canvas.toBlob((blob) => done(blob!), 'image/png'))
}

export function save(blob: Blob, name: string) {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(blob)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 1000)
}

/** Plain text for SVG made as a string. */
export const escape = (text: string) => text.replace(/[&<>"]/g, (c) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[c]!)
