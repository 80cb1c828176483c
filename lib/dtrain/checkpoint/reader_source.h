// Serves state from a checkpoint.
#pragma once

#include "dtrain/checkpoint/state.h"
#include "dtrain/checkpoint/store/reader.h"

namespace dtrain::checkpoint {

/// Reads the pieces of any layout from a checkpoint of any other. Floating-point values are
/// converted where the dtypes differ.
///
/// Throws:  read(): Error{checkpoint} naming the checkpoint and the tensor that is missing or has
///          another shape; as store::Reader.
/// Threads: one caller.
class ReaderSource final : public Source {
 public:
  /// `reader` must outlive this.
  explicit ReaderSource(store::Reader& reader) : reader_(reader) {}

  [[nodiscard]] bool has(const std::string& name) const override {
    return reader_.find(name) != nullptr;
  }
  void read(const Piece& piece) override;

 private:
  store::Reader& reader_;
};

}  // namespace dtrain::checkpoint
