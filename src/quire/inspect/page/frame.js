// One frame at a time, however many things ask for one; and places of the page, which are its address behind the #.

let draw = () => {};
let isScheduled = false;
export const drawWith = (made) => { draw = made; };

export function schedule() {
  if (isScheduled) return;
  isScheduled = true;
  requestAnimationFrame(() => {
    isScheduled = false;
    performance.mark("frame");
    draw();
    performance.measure("quire frame", "frame");
  });
}

export const go = (place) => { location.hash = place; };
