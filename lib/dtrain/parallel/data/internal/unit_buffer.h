// Full values of one unit, in memory that is allocated and released repeatedly.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// Tensors that outlive their memory: a holder, such as an autograd graph that saved one, sees the
/// new values after the next allocate(). While released, their data pointer is null and they must
/// not be read. Debug builds overwrite memory before releasing it.
///
/// The tensors own the memory, so a call still in flight when this is destroyed after a rank
/// failure keeps its buffers.
///
/// Threads: one.
class UnitBuffer {
 public:
  /// options: dtype, and the device of memory from `allocate`. `layout` and what `allocate` refers
  /// to must outlive this.
  UnitBuffer(const param::ArenaLayout& layout, param::UnitId unit, const at::TensorOptions& options,
             param::ArenaAllocator allocate);

  /// Allocates zeroed memory. Must not be allocated.
  void allocate();
  /// No-op if not allocated.
  void release();
  [[nodiscard]] bool is_allocated() const;

  /// (elements of the unit, padding included).
  [[nodiscard]] const at::Tensor& flat() const { return flat_; }
  /// Returns the parameter, which must belong to this unit, in its storage shape.
  [[nodiscard]] const at::Tensor& view(param::ParameterId id) const;

 private:
  void set_data(at::DataPtr data);

  param::ArenaAllocator allocate_;
  param::ParameterId first_;
  at::Tensor flat_;                // shares one storage with the views
  std::vector<at::Tensor> views_;  // by parameter of the unit
};

}  // namespace dtrain::parallel
