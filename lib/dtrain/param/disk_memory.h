// Arena memory in a file: values that are needed once a step need no RAM meanwhile.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace dtrain::param {

/// Hands out tensors over a mapped file without a name, which is gone with the process, however it
/// ends. Values are read and written in place; whoever works through them says what comes next and
/// what is done, so that reading and writing go on beside the work and pages are given back.
///
/// Threads: one.
class DiskMemory {
 public:
  /// Reserves `bytes` in `folder`; tensors may take that much in all.
  ///
  /// Throws: Error{usage} naming the folder, what is needed and what is free.
  DiskMemory(const std::string& folder, std::int64_t bytes);
  ~DiskMemory();
  DiskMemory(const DiskMemory&) = delete;
  DiskMemory& operator=(const DiskMemory&) = delete;

  /// `bytes` zeroed bytes, (bytes) uint8, 64-byte aligned; freed with this, which must outlive them.
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes);
  /// What `bytes` take of the reserve.
  [[nodiscard]] static std::int64_t rounded(std::int64_t bytes);

  // Of a contiguous tensor in memory from here.

  /// Starts to read it; never waits.
  void read_ahead(const at::Tensor& part) const;
  /// Starts to write it; never waits.
  void write_back(const at::Tensor& part) const;
  /// Waits until it is written and gives its memory back.
  void release(const at::Tensor& part) const;

 private:
  struct Span {
    std::int64_t begin = 0;  // of whole pages in the file
    std::int64_t size = 0;
  };
  [[nodiscard]] Span pages_of(const at::Tensor& part) const;

  std::string folder_;
  int file_ = -1;
  char* data_ = nullptr;
  std::int64_t bytes_;
  std::int64_t used_ = 0;
};

}  // namespace dtrain::param
