// Holds the unsharded values of one unit, in memory that is allocated and released repeatedly.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// A flat tensor and its views, which stay valid while their memory is released and allocated
/// again: an autograd graph that has saved one sees the new values after the next allocate(). While
/// released, the tensors have a null data pointer and must not be read. Debug builds overwrite
/// memory before releasing it.
///
/// The tensors own the memory, so if this is destroyed after a rank failure, a call that is still
/// in flight keeps its buffers.
///
/// Threads: one.
class UnitBuffer {
 public:
  /// options: dtype and device; memory from `allocate` must lie on that device. `layout` and what
  /// `allocate` refers to must outlive this.
  UnitBuffer(const param::ArenaLayout& layout, param::UnitId unit, const at::TensorOptions& options,
             param::ArenaAllocator allocate);

  /// Allocates zeroed memory; none may be allocated yet.
  void allocate();
  /// No-op if not allocated.
  void release();
  [[nodiscard]] bool is_allocated() const;

  /// The elements of the unit, padding included, as a tensor of one dim.
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
