/** A picture to begin with, for a model of images: hills under a sun, as PNG in base64. */
export function picture(size = 224): string {
  const canvas = document.createElement('canvas')
  canvas.width = canvas.height = size
  const draw = canvas.getContext('2d')!
  const sky = draw.createLinearGradient(0, 0, 0, size)
  sky.addColorStop(0, '#3d7fb8')
  sky.addColorStop(1, '#f3dcb4')
  draw.fillStyle = sky
  draw.fillRect(0, 0, size, size)
  const disc = (x: number, y: number, r: number, fill: string) => {
    draw.fillStyle = fill
    draw.beginPath()
    draw.arc(x * size, y * size, r * size, 0, 2 * Math.PI)
    draw.fill()
  }
  disc(0.68, 0.34, 0.11, '#ffd23f')
  disc(0.2, 1.15, 0.52, '#4d7d57')
  disc(0.85, 1.25, 0.6, '#2f5d43')
  draw.fillStyle = '#8a4b2a'
  draw.fillRect(0.3 * size, 0.56 * size, 0.035 * size, 0.14 * size)
  disc(0.317, 0.5, 0.1, '#1f6b3a')
  return canvas.toDataURL('image/png').split(',')[1]
}
