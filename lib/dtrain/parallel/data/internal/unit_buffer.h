// One unit's values in full, in memory that comes and goes.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dtrain/param/arena.h"

namespace dtrain::parallel {

/// Tensors that stay while their memory is taken and given back: whoever holds one of them, such as
/// a graph that saved it, sees the new values after the next take. One that has no memory must not
/// be read: it points nowhere. Debug builds overwrite memory before they give it back.
///
/// The tensors own the memory: a call that is still under way when this is destroyed, because some
/// rank has failed, keeps what it reads or writes.
///
/// Threads: one.
class UnitBuffer {
 public:
  /// options: dtype, and the device of what `allocate` gives. `layout` and what `allocate` refers
  /// to must outlive this.
  UnitBuffer(const param::ArenaLayout& layout, param::UnitId unit, const at::TensorOptions& options,
             param::ArenaAllocator allocate);

  /// Gets zeroed memory; it must have none.
  void take();
  /// Without memory it does nothing.
  void give_back();
  [[nodiscard]] bool is_taken() const;

  /// (elements of the unit, padding included).
  [[nodiscard]] const at::Tensor& flat() const { return flat_; }
  /// The parameter, which must be of this unit, in its storage shape.
  [[nodiscard]] const at::Tensor& view(param::ParameterId id) const;

 private:
  void set_data(at::DataPtr data);

  param::ArenaAllocator allocate_;
  param::ParameterId first_;
  at::Tensor flat_;                // shares one storage with the views, whatever it points to
  std::vector<at::Tensor> views_;  // by parameter of the unit
};

}  // namespace dtrain::parallel
