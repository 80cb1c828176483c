#include "dtrain/comm/leader.h"

#include <ATen/ops/zeros.h>

#include <exception>

#include "dtrain/base/error.h"
#include "dtrain/comm/exchange.h"

namespace dtrain::comm {

void on_leader(ProcessGroup& group, std::string_view what, const std::function<void()>& task) {
  const at::Tensor done = at::zeros({1}, at::TensorOptions().dtype(at::kLong));
  std::exception_ptr failure;
  if (group.rank() == 0) {
    try {
      task();
      done.fill_(1);
    } catch (...) {
      failure = std::current_exception();
    }
  }
  group.broadcast(done, 0).wait_host();
  if (failure) std::rethrow_exception(failure);
  if (done.item<std::int64_t>() == 0) {
    base::fail(base::ErrorKind::comm, "rank 0 failed at {}; its own message tells why", what);
  }
}

std::string leader_text(ProcessGroup& group, std::string_view what,
                        const std::function<std::string()>& text) {
  std::string own;
  on_leader(group, what, [&] { own = text(); });
  return exchange_texts(group, own).front();
}

}  // namespace dtrain::comm
