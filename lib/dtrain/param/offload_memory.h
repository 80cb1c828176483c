// Offload memory: storage for values that are needed once per step, outside compute memory (the
// memory of the device that computes the step).
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>

namespace dtrain::param {

/// Values being transferred to compute memory.
struct Fetched {
  at::Tensor values;
  std::shared_ptr<const c10::Event> arrival = {};  ///< null if already there

  /// Makes the caller's stream wait for the values. Destroy them after OffloadMemory::store or
  /// release of their part.
  [[nodiscard]] const at::Tensor& wait() const;
};

/// Memory that holds offloaded values between their uses. The caller announces the next part and
/// releases finished ones, so that transfers overlap with compute.
///
/// Threads: one.
class OffloadMemory {
 public:
  virtual ~OffloadMemory() = default;

  /// The device that computes a step.
  [[nodiscard]] virtual c10::Device device() const = 0;

  /// Allocates zeroed host-accessible memory, (bytes) uint8; freed when both this object and the
  /// tensor are destroyed.
  ///
  /// Throws: Error{usage} or Error{memory} if there is no room.
  [[nodiscard]] virtual at::Tensor allocate(std::int64_t bytes) = 0;

  // `part` is a contiguous tensor within memory from allocate().

  /// Starts the transfer to compute memory; never waits.
  [[nodiscard]] virtual Fetched fetch(const at::Tensor& part) = 0;
  /// Starts to write back fetched values, after the caller's stream has updated them; never waits.
  virtual void store(const at::Tensor& values, const at::Tensor& part) = 0;
  /// Frees the part's compute memory once it is stored. REQUIRES: all uses of the fetched values are
  /// on the caller's stream. The values may then be destroyed: the next fetch into their memory is
  /// ordered after those uses.
  virtual void release(const at::Tensor& part) = 0;
  /// Makes the caller's stream wait for all transfers in flight.
  virtual void wait_for_transfers() = 0;
};

/// Pinned host memory. Transfers run on a separate stream, in the order of the calls. The host may
/// access the memory after it has synchronized with the stream that called wait_for_transfers().
///
/// Threads: one.
class PinnedMemory final : public OffloadMemory {
 public:
  explicit PinnedMemory(c10::Device device);

  [[nodiscard]] c10::Device device() const override { return copies_.device(); }
  [[nodiscard]] at::Tensor allocate(std::int64_t bytes) override;
  [[nodiscard]] Fetched fetch(const at::Tensor& part) override;
  void store(const at::Tensor& values, const at::Tensor& part) override;
  void release(const at::Tensor& part) override;
  void wait_for_transfers() override;

 private:
  c10::Stream copies_;
};

}  // namespace dtrain::param
