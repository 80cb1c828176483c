// Arena memory in a file: values needed once per step take no RAM in between.
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

/// Hands out tensors over mapped files without names, which are gone with the process, however it
/// ends. Values are read and written in place; the caller says which part comes next and which is
/// done, so that reading and writing run beside the work and pages are given back.
///
/// Threads: one.
class DiskMemory final : public OffloadMemory {
 public:
  explicit DiskMemory(std::string folder) : folder_(std::move(folder)) {}
  DiskMemory(const DiskMemory&) = delete;
  DiskMemory& operator=(const DiskMemory&) = delete;

  /// Throws: Error{usage} unless `folder` has room for `bytes`, all that this rank will allocate;
  ///         StorageError if the storage does not answer, and in place of Error{usage} where a
  ///         launcher has started the job again, after the room has been waited for.
  static void check_free_space(const std::string& folder, std::int64_t bytes);

  [[nodiscard]] c10::Device device() const override { return c10::kCPU; }
  /// The room on the disk is reserved.
  ///
  /// Throws: Error{usage}; StorageError if the storage does not answer or has no room.
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override;

  // Values are read and written where they are mapped.

  [[nodiscard]] Fetched fetch(const at::Tensor& part) override;
  void store(const at::Tensor& values, const at::Tensor& part) override;
  /// Waits until the part is written.
  ///
  /// Throws: StorageError if it cannot be written, as store.
  void release(const at::Tensor& part) override;
  void wait_for_transfers() override {}

 private:
  // Mapped until it is destroyed.
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
    std::int64_t size = 0;   // 0: the tensor has no page of its own
  };
  [[nodiscard]] Pages pages_of(const at::Tensor& part) const;
  void write_back(const Pages& pages, unsigned flags) const;

  std::string folder_;
  std::vector<std::shared_ptr<const File>> files_;  // shared with their tensors
};

}  // namespace dtrain::param
