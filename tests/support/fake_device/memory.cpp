#include "support/fake_device/memory.h"

#include <c10/util/Exception.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

namespace dtrain::testing::fake {

namespace {

constexpr std::size_t kWindow = std::size_t{1} << 42;
constexpr std::size_t kPage = 4096;

std::size_t page_below(std::size_t byte) { return byte / kPage * kPage; }
std::size_t page_above(std::size_t byte) { return page_below(byte + kPage - 1); }

char* reserve(int file) {
  void* const window = mmap(nullptr, kWindow, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
  TORCH_CHECK(window != MAP_FAILED, "the fake device's addresses: ", std::strerror(errno));
  return static_cast<char*>(window);
}

void set_rights(char* begin, std::size_t bytes, int rights) {
  TORCH_CHECK(mprotect(begin, bytes, rights) == 0,
              "the fake device's memory: ", std::strerror(errno));
}

}  // namespace

Block::~Block() {
  if (mapped > 0) memory().release(*this);
}

std::string Block::describe() const {
  const std::string owner =
      place == Place::pinned ? "pinned host memory" : c10::str("fake:", int{device});
  return c10::str("allocation ", number, " (", bytes, " bytes of ", owner, ")");
}

Memory::Memory() : file_(memfd_create("fake_device", MFD_CLOEXEC)) {
  TORCH_CHECK(file_ >= 0 && ftruncate(file_, static_cast<off_t>(kWindow)) == 0,
              "the fake device's memory: ", std::strerror(errno));
  host_ = reserve(file_);
  kernels_ = reserve(file_);
}

BlockPtr Memory::allocate(std::size_t bytes, Place place, c10::DeviceIndex device) {
  auto block = std::make_shared<Block>();
  block->bytes = bytes;
  block->place = place;
  block->device = device;
  {
    const std::lock_guard lock(mutex_);
    const std::size_t mapped = page_above(bytes);
    TORCH_CHECK(next_ + mapped + kPage <= kWindow, "the fake device's addresses are used up");
    block->number = ++allocations_;
    block->begin = next_;
    block->mapped = mapped;
    next_ += mapped + kPage;  // a page without rights behind each block
    blocks_[block->begin] = block;
  }
  constexpr int kAll = PROT_READ | PROT_WRITE;
  set_rights(kernels_ + block->begin, block->mapped, kAll);
  if (place == Place::pinned) set_rights(host_ + block->begin, block->mapped, kAll);
  std::memset(kernels_ + block->begin, 0xFF, bytes);
  return block;
}

void Memory::forget(const Block& block) {
  mprotect(host_ + block.begin, block.mapped, PROT_NONE);
  const std::lock_guard lock(mutex_);
  blocks_.erase(block.begin);
}

void Memory::release(const Block& block) noexcept {
  mprotect(kernels_ + block.begin, block.mapped, PROT_NONE);
  fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(block.begin),
            static_cast<off_t>(block.mapped));
}

bool Memory::is_for_host(const void* address) const {
  const auto* const byte = static_cast<const char*>(address);
  return byte >= host_ && byte < host_ + kWindow;
}

bool Memory::is_for_kernels(const void* address) const {
  const auto* const byte = static_cast<const char*>(address);
  return byte >= kernels_ && byte < kernels_ + kWindow;
}

BlockPtr Memory::find_locked(std::size_t offset) const {
  const auto next = blocks_.upper_bound(offset);
  if (next == blocks_.begin()) return nullptr;
  BlockPtr block = std::prev(next)->second.lock();
  return block && offset < block->begin + block->mapped ? block : nullptr;
}

BlockPtr Memory::find(const void* address) {
  if (!is_for_host(address)) return nullptr;
  const std::lock_guard lock(mutex_);
  return find_locked(static_cast<std::size_t>(static_cast<const char*>(address) - host_));
}

BlockPtr Memory::find_at_fault(const void* address) {
  const char* const window = is_for_host(address) ? host_ : kernels_;
  const std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return nullptr;
  return find_locked(static_cast<std::size_t>(static_cast<const char*>(address) - window));
}

std::size_t Memory::offset_in(const Block& block, const void* address) const {
  const char* const window = is_for_host(address) ? host_ : kernels_;
  return static_cast<std::size_t>(static_cast<const char*>(address) - window) - block.begin;
}

void* Memory::for_kernels(const void* host_address) const {
  if (host_address == nullptr) return nullptr;
  TORCH_CHECK(is_for_host(host_address), "not an address of the fake device");
  return kernels_ + (static_cast<const char*>(host_address) - host_);
}

void Memory::protect(const Block& block, const Range& range, int rights) {
  const std::size_t first = page_above(range.begin);
  const std::size_t last = range.end == block.bytes ? block.mapped : page_below(range.end);
  if (first < last) set_rights(host_ + block.begin + first, last - first, rights);
}

Memory& memory() {
  static Memory* const made = new Memory;
  return *made;
}

namespace {

bool is_write(const void* context) {
  constexpr greg_t kWriteBit = 2;  // of x86's page fault error code
  return (static_cast<const ucontext_t*>(context)->uc_mcontext.gregs[REG_ERR] & kWriteBit) != 0;
}

void report(const char* who, const char* verb, const void* address) {
  std::array<char, 256> line{};
  int length = 0;
  if (const BlockPtr block = memory().find_at_fault(address)) {
    const bool is_pinned = block->place == Place::pinned;
    length =
        std::snprintf(line.data(), line.size(),
                      "fake device: %s %s byte %zu of %s allocation %llu (%zu bytes)%s\n", who,
                      verb, memory().offset_in(*block, address), is_pinned ? "pinned" : "device",
                      static_cast<unsigned long long>(block->number), block->bytes,
                      is_pinned ? " while a copy uses it" : "");
  } else {
    length = std::snprintf(line.data(), line.size(),
                           "fake device: %s %s memory that is free or beyond an allocation\n", who,
                           verb);
  }
  [[maybe_unused]] const ssize_t written =
      write(STDERR_FILENO, line.data(), static_cast<std::size_t>(length));
}

void on_fault(int signal_number, siginfo_t* info, void* context) {
  const void* const address = info->si_addr;
  const bool is_host = memory().is_for_host(address);
  if (is_host || memory().is_for_kernels(address)) {
    report(is_host ? "the host" : "a kernel", is_write(context) ? "writes" : "reads", address);
  }
  signal(signal_number, SIG_DFL);  // the access faults again, and ends the process
}

}  // namespace

void report_stray_accesses() {
  (void)memory();  // a handler cannot make it
  struct sigaction action {};
  action.sa_sigaction = on_fault;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGSEGV, &action, nullptr);
}

}  // namespace dtrain::testing::fake
