// Memory beside that in which a step computes, for values that are needed once per step.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>

namespace dtrain::param {

/// Values on their way to where a step computes.
struct Fetched {
  at::Tensor values;
  std::shared_ptr<const c10::Event> arrival = {};  ///< null: they are there

  /// The caller's stream goes on when the values are there, which are to be destroyed after
  /// OffloadMemory::store or release of their part.
  [[nodiscard]] const at::Tensor& wait() const;
};

/// The caller says which part comes next and which is done, so that values travel beside the work.
///
/// Threads: one.
class OffloadMemory {
 public:
  virtual ~OffloadMemory() = default;

  /// Where a step computes.
  [[nodiscard]] virtual c10::Device device() const = 0;

  /// `bytes` zeroed bytes, (bytes) uint8, that the host can read and write; freed when both this
  /// and the tensor are gone.
  ///
  /// Throws: Error{usage}, Error{memory} where there is no room.
  [[nodiscard]] virtual at::Tensor allocate(std::int64_t bytes) = 0;

  // `part` is a contiguous tensor in memory from here.

  /// Starts to bring it to where a step computes; never waits.
  [[nodiscard]] virtual Fetched fetch(const at::Tensor& part) = 0;
  /// Starts to bring back the values of a fetch, as the caller's stream leaves them; never waits.
  virtual void store(const at::Tensor& values, const at::Tensor& part) = 0;
  /// Gives back what the part takes where the step computes, once it is stored. The caller's stream
  /// has got all that uses the values of its fetch, which may now be destroyed: the next fetch into
  /// their memory comes behind that.
  virtual void release(const at::Tensor& part) = 0;
  /// The caller's stream goes on when all that is under way has arrived.
  virtual void wait_for_transfers() = 0;
};

/// Pinned memory of the host. Values travel on a stream of their own, in the order of the calls.
/// The host may read and write the memory once it has waited for the stream that has called
/// wait_for_transfers().
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
