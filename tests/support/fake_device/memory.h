// Device memory, which kernels can access and the host cannot.
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

/// One allocation, alive as long as a tensor or a queued kernel holds it.
struct Block {
  Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;
  ~Block();

  /// Sequence number of the allocation in the process.
  std::uint64_t number = 0;
  /// Offset in the address window; requested and mapped size. Units: bytes.
  std::size_t begin = 0;
  std::size_t bytes = 0;
  std::size_t mapped = 0;
  Place place = Place::device;
  c10::DeviceIndex device = 0;
  /// If allocated in a capture: the pool to which the block returns when its tensor is freed.
  std::weak_ptr<GraphPool> pool;
  bool is_of_graph = false;
  /// The stream that was current at allocation, and the streams of record_stream().
  std::set<StreamNumber> streams;
  History history{0, {}};
  /// Guards streams and history.
  std::mutex mutex;

  /// Returns "allocation 12 (400 bytes of fake:0)".
  [[nodiscard]] std::string describe() const;
};
using BlockPtr = std::shared_ptr<Block>;

/// Two address windows over one in-memory file. Tensors point into the host's window, which has no
/// access rights for device memory; kernels use the other window. The host's window is never
/// unprotected for a kernel, so a stray access faults on any thread at any time. Addresses are
/// never reused, so a late access to freed memory faults, too.
///
/// Threads: any.
class Memory {
 public:
  /// Throws:  c10::Error if the system refuses the addresses.
  Memory();

  /// Allocates `bytes` > 0, filled with 0xFF, which is NaN in floating point.
  [[nodiscard]] BlockPtr allocate(std::size_t bytes, Place place, c10::DeviceIndex device);
  /// Unmaps the block's host addresses; kernels that hold the block may still use it.
  void forget(const Block& block);

  /// Returns the block at an address of the host's window; null if none.
  [[nodiscard]] BlockPtr find(const void* address);
  /// As find(), for signal handlers and addresses of either window: returns null instead of waiting
  /// for a lock.
  [[nodiscard]] BlockPtr find_at_fault(const void* address);
  [[nodiscard]] bool is_for_host(const void* address) const;
  [[nodiscard]] bool is_for_kernels(const void* address) const;
  /// Returns the offset in `block` of an address of either window.
  [[nodiscard]] std::size_t offset_in(const Block& block, const void* address) const;

  /// Returns the same byte's address in the kernels' window; null stays null.
  [[nodiscard]] void* for_kernels(const void* host_address) const;
  /// Returns the block's address in the host's window.
  [[nodiscard]] void* for_host(const Block& block) const { return host_ + block.begin; }
  /// Sets the host's access rights, as mprotect, for the whole pages in a range of a block.
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

/// The process's instance; never freed, since tensors may outlive main.
Memory& memory();

/// Installs a SIGSEGV handler. On a fault in the address windows it writes a line to standard error
/// before the process ends: who accessed which byte of which allocation. Call again after another
/// handler was installed.
void report_stray_accesses();

}  // namespace dtrain::testing::fake
