// Arena memory in a file: values needed once per step take no RAM in between.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/descriptor.h"

namespace dtrain::param {

/// Hands out tensors over mapped files without names, which are gone with the process, however it
/// ends. Values are read and written in place; the caller says which part comes next and which is
/// done, so that reading and writing run beside the work and pages are given back.
///
/// Threads: one.
class DiskMemory {
 public:
  explicit DiskMemory(std::string folder) : folder_(std::move(folder)) {}
  DiskMemory(const DiskMemory&) = delete;
  DiskMemory& operator=(const DiskMemory&) = delete;

  /// Throws: Error{usage} unless `folder` has room for `bytes`, all that this rank will allocate.
  static void check_room(const std::string& folder, std::int64_t bytes);

  /// `bytes` zeroed bytes, (bytes) uint8, whose room on the disk is reserved; freed when both this
  /// and the tensor are gone.
  ///
  /// Throws: Error{usage} naming the folder, what is needed and what is free.
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes);

  // The calls below take a contiguous tensor in memory from here.

  /// Starts to read it; never waits.
  void read_ahead(const at::Tensor& part) const;
  /// Starts to write it; never waits.
  void write_back(const at::Tensor& part) const;
  /// Waits until it is written and gives its memory back.
  void release(const at::Tensor& part) const;

 private:
  // Mapped until it is destroyed.
  struct File {
    File(base::Descriptor opened, char* mapped, std::int64_t size)
        : descriptor(std::move(opened)), data(mapped), bytes(size) {}
    ~File();

    base::Descriptor descriptor;
    char* data;
    std::int64_t bytes;
  };
  struct Pages {
    const File& file;
    std::int64_t begin = 0;  // in the file
    std::int64_t size = 0;   // 0: the tensor has no page of its own
  };
  [[nodiscard]] Pages pages_of(const at::Tensor& part) const;

  std::string folder_;
  std::vector<std::shared_ptr<const File>> files_;  // shared with their tensors
};

}  // namespace dtrain::param
