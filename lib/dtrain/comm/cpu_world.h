// The world of every backend whose tensors lie in the host's memory.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string_view>

#include "dtrain/comm/queued_group.h"
#include "dtrain/comm/world.h"

namespace dtrain::comm {

/// What a backend adds to a CpuWorld.
struct CpuBackend {
  std::string_view name;
  /// Makes the transport of a new group of several.
  ///
  /// Collective: the group.
  std::function<std::unique_ptr<Transport>(const GroupIdentity&)> connect = {};
  /// As World::allocate. Empty: LibTorch's allocator.
  std::function<at::Tensor(std::int64_t bytes)> allocate = {};
  /// As World::end_meeting; may be empty.
  std::function<void()> end_meeting = {};
};

/// For CpuBackend::allocate: `bytes` zeroed bytes on pages of their own, (bytes) uint8, which go back
/// to the system when their tensor dies. `count` (may be empty) receives the
/// bytes taken and, as a negative number, those given back; it must outlive the tensor.
///
/// Throws:  Error{memory} if there is none.
/// Threads: any.
[[nodiscard]] at::Tensor mapped_memory(std::int64_t bytes,
                                       const std::function<void(std::int64_t)>& count);

class CpuWorld final : public World {
 public:
  /// Makes control().
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
  void end_meeting() override {
    if (backend_.end_meeting) backend_.end_meeting();
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
