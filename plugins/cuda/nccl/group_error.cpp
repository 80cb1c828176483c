#include "cuda/nccl/group_error.h"

#include <fmt/format.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "dtrain/base/error.h"

namespace dtrain::cuda {

std::exception_ptr GroupError::get() const {
  if (!is_set_) return nullptr;
  const std::lock_guard lock(mutex_);
  return error_;
}

void GroupError::rethrow() const {
  if (const std::exception_ptr found = get()) std::rethrow_exception(found);
}

void GroupError::set(std::exception_ptr error) noexcept {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
  is_set_ = true;
}

void GroupError::set(const comm::CallRecord& call, const comm::TransportFailure& failure) {
  std::vector<std::int64_t> peers;
  if (call.peer >= 0) peers.push_back(call.peer);
  set(comm::error_of(identity_, call, timeout_, failure, peers));
}

void GroupError::set(const std::string& reason) noexcept {
  set(std::make_exception_ptr(
      base::Error(base::ErrorKind::comm, fmt::format("group '{}': {}", identity_.name, reason))));
}

}  // namespace dtrain::cuda
