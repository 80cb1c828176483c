// Arena memory in memory-mapped files: values that are needed once per step use no RAM in between.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dtrain/base/io/descriptor.h"
#include "dtrain/base/io/mapped_file.h"
#include "dtrain/param/offload_memory.h"

namespace dtrain::param {

/// Allocates tensors in unnamed mapped files, which disappear with the process. Values are read and
/// written in place. The caller announces the next part and releases finished ones, so that I/O
/// overlaps with compute and pages are freed.
///
/// Threads: one.
class DiskMemory final : public OffloadMemory {
 public:
  explicit DiskMemory(std::string folder) : folder_(std::move(folder)) {}
  DiskMemory(const DiskMemory&) = delete;
  DiskMemory& operator=(const DiskMemory&) = delete;

  /// Checks that `folder` has room for `bytes`, the total that this rank will allocate.
  ///
  /// Throws: Error{usage} if there is too little room. After a restart by a launcher, waits for
  ///         room first, then throws StorageError instead. StorageError if the storage does not
  ///         respond.
  static void check_free_space(const std::string& folder, std::int64_t bytes);

  [[nodiscard]] c10::Device device() const override { return c10::kCPU; }
  /// Reserves the disk space, so that the run cannot fail for lack of it later.
  ///
  /// Throws: Error{usage}; StorageError if the storage does not respond or has no room.
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override;

  // Values are read and written in the mapping.

  [[nodiscard]] Fetched fetch(const at::Tensor& part) override;
  void store(const at::Tensor& values, const at::Tensor& part) override;
  /// Waits until the part is written.
  ///
  /// Throws: StorageError if it cannot be written, as store.
  void release(const at::Tensor& part) override;
  void wait_for_transfers() override {}

 private:
  // Stays mapped until destroyed.
  struct File {
    File(base::Descriptor opened, std::span<char> mapped, const std::string& folder);
    ~File();

    base::Descriptor descriptor;
    char* data;
    std::int64_t bytes;
    base::MappingGuard guard;
  };
  struct Pages {
    const File& file;
    std::int64_t begin = 0;  // in the file
    std::int64_t size = 0;   // 0 if the tensor has no page to itself
  };
  [[nodiscard]] Pages pages_of(const at::Tensor& part) const;
  void write_back(const Pages& pages, unsigned flags) const;

  std::string folder_;
  std::vector<std::shared_ptr<const File>> files_;  // shared with their tensors
};

}  // namespace dtrain::param
