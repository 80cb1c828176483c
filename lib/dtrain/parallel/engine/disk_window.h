// Brings what an optimizer updates from the disk and back, a range at a time.
#pragma once

#include <vector>

#include "dtrain/optim/optimizer.h"
#include "dtrain/param/disk_memory.h"

namespace dtrain::parallel {

/// While a range is updated the next one is read and the one before is written.
///
/// Threads: one.
class DiskWindow final : public optim::UpdateObserver {
 public:
  /// `disk` and the arenas, which lie there, must outlive this.
  DiskWindow(const param::DiskMemory& disk, std::vector<const param::Arena*> arenas)
      : disk_(disk), arenas_(std::move(arenas)) {}

  void before(param::ElementRange range, param::ElementRange next) override;
  void after(param::ElementRange range) override;
  /// The update has ended: waits for its last range.
  void finish();

 private:
  const param::DiskMemory& disk_;
  std::vector<const param::Arena*> arenas_;
  param::ElementRange written_;  // still to be released
};

}  // namespace dtrain::parallel
