#include "dtrain/parallel/engine/disk_window.h"

namespace dtrain::parallel {

void DiskWindow::before(param::ElementRange, param::ElementRange next) {
  if (next.is_empty()) return;
  for (const param::Arena* arena : arenas_) disk_.read_ahead(arena->slice(next));
}

void DiskWindow::after(param::ElementRange range) {
  for (const param::Arena* arena : arenas_) disk_.write_back(arena->slice(range));
  finish();
  written_ = range;
}

void DiskWindow::finish() {
  if (written_.is_empty()) return;
  for (const param::Arena* arena : arenas_) disk_.release(arena->slice(written_));
  written_ = {};
}

}  // namespace dtrain::parallel
