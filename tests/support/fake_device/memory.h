// Memory that kernels can reach and the host cannot.
#pragma once

#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "support/fake_device/history.h"

namespace dtrain::testing::fake {

class GraphPool;

enum class Place { device, pinned };

/// One allocation. It lasts as long as a tensor or a queued kernel holds it.
struct Block {
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  /// Counts the allocations of the process.
  std::uint64_t number = 0;
  /// Bytes from the start of the address window, and how many were asked for and are mapped.
  std::size_t begin = 0;
  std::size_t bytes = 0;
  std::size_t mapped = 0;
  Place place = Place::device;
  c10::DeviceIndex device = 0;
  /// Where it goes when its tensor ends, if it was allocated in a capture.
  std::weak_ptr<GraphPool> pool;
  bool is_of_graph = false;
  /// The stream that was current at its allocation, and those of record_stream().
  std::set<StreamNumber> streams;
  History history{0, {}};
  /// Guards streams and history.
  std::mutex mutex;

  /// "allocation 12 (400 bytes of fake:0)".
  [[nodiscard]] std::string describe() const;
};
using BlockPtr = std::shared_ptr<Block>;

/// Two windows of addresses over one file in memory. Tensors point into the host's window, which
/// has no access rights for device memory; kernels use the other. So no page is unprotected for a
/// kernel, and a stray access faults on any thread at any time. Addresses are never used twice, so
/// that a late access to freed memory faults, too.
///
/// Threads: any.
class Memory {
 public:
  /// Throws:  c10::Error if the system refuses the addresses.
  Memory();

  /// A block of `bytes` > 0 that are all 0xFF, NaN as floating-point numbers.
  [[nodiscard]] BlockPtr allocate(std::size_t bytes, Place place, c10::DeviceIndex device);
  /// No address leads to it any more; kernels that hold it may still use it.
  void forget(const Block& block);

  /// The block at an address of the host's window, or null.
  [[nodiscard]] BlockPtr find(const void* address);
  /// As find(), for a signal handler and either window: does not wait, null if it would have to.
  [[nodiscard]] BlockPtr find_at_fault(const void* address);
  [[nodiscard]] bool is_for_host(const void* address) const;
  [[nodiscard]] bool is_for_kernels(const void* address) const;
  /// Byte of `block` that an address of either window means.
  [[nodiscard]] std::size_t offset_in(const Block& block, const void* address) const;

  /// The same byte in the window of kernels; null stays null.
  [[nodiscard]] void* for_kernels(const void* host_address) const;
  /// The first byte in the window of the host.
  [[nodiscard]] void* for_host(const Block& block) const { return host_ + block.begin; }
  /// Sets the host's rights, as mprotect, to the whole pages in a range of a block.
  void protect(const Block& block, const Range& range, int rights);

 private:
  friend struct Block;

  [[nodiscard]] BlockPtr find_locked(std::size_t offset) const;
  void release(const Block& block) noexcept;

  int file_ = -1;
  char* host_ = nullptr;
  char* kernels_ = nullptr;
  std::mutex mutex_;
  std::size_t next_ = 0;
  std::uint64_t allocations_ = 0;
  std::map<std::size_t, std::weak_ptr<Block>> blocks_;  // by begin
};

/// The process's one; never freed, since tensors may outlive main.
Memory& memory();

/// From now on a SIGSEGV in the address windows writes a line to standard error before it ends the
/// process: who accessed which byte of which allocation. It must be set again after another
/// handler.
void report_stray_accesses();

}  // namespace dtrain::testing::fake
