#include "dtrain/comm/leader.h"

#include "dtrain/comm/exchange.h"
#include "dtrain/comm/long_task.h"

namespace dtrain::comm {

std::string leader_text(ProcessGroup& group, std::string_view what,
                        const std::function<std::string()>& text) {
  std::string own;
  run_long_on_leader(group, what, [&] { own = text(); });
  return exchange_texts(group, own).front();
}

}  // namespace dtrain::comm
