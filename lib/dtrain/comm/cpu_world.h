// Implements World for all backends whose tensors are in host memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "dtrain/comm/queued_group.h"
#include "dtrain/comm/world.h"

namespace dtrain::comm {

/// Functions that a backend provides to a CpuWorld.
struct CpuBackend {
  std::string_view name;
  /// Connects a new group of several ranks.
  ///
  /// Collective: the group.
  std::function<std::unique_ptr<Transport>(const GroupIdentity&)> connect = {};
  /// As World::allocate. Empty: LibTorch's allocator.
  std::function<at::Tensor(std::int64_t bytes)> allocate = {};
  /// As World::close_rendezvous; may be empty.
  std::function<void()> close_rendezvous = {};
};

/// For CpuBackend::allocate: maps `bytes` zeroed bytes, (bytes) uint8, which are unmapped when the
/// tensor is destroyed. count: called with the number of mapped bytes, and with its negative when
/// they are unmapped; may be empty; must outlive the tensor.
///
/// Throws:  Error{memory} if the memory cannot be mapped.
/// Threads: any.
[[nodiscard]] at::Tensor mapped_memory(std::int64_t bytes,
                                       const std::function<void(std::int64_t)>& count);

class CpuWorld final : public World {
 public:
  /// Creates control().
  ///
  /// Collective: all ranks of the job.
  CpuWorld(std::int64_t rank, std::int64_t size, const GroupOptions& options, CpuBackend backend);

  [[nodiscard]] std::int64_t rank() const override { return rank_; }
  [[nodiscard]] std::int64_t size() const override { return size_; }
  [[nodiscard]] c10::Device device() const override { return c10::kCPU; }
  [[nodiscard]] std::string_view backend() const override { return backend_.name; }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override;
  [[nodiscard]] std::shared_ptr<ProcessGroup> split(std::span<const std::int64_t> ranks,
                                                    std::string_view name) override;
  [[nodiscard]] ProcessGroup& control() override { return *control_; }
  void close_rendezvous() override {
    if (backend_.close_rendezvous) backend_.close_rendezvous();
  }

 private:
  std::int64_t rank_;
  std::int64_t size_;
  GroupOptions options_;
  CpuBackend backend_;
  std::int64_t splits_ = 0;  // the same on every rank, since split is collective
  std::shared_ptr<ProcessGroup> control_;
};

}  // namespace dtrain::comm
