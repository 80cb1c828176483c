#include "launcher/attempt_end.h"

#include <fmt/format.h>

#include <algorithm>

namespace launcher {

AttemptEnd attempt_end(const Verdict& verdict, const std::vector<Rank>& ranks,
                       StepClock::Time start, StepClock& steps) {
  AttemptEnd end;
  end.status = status_of(verdict, ranks);
  end.has_failed = verdict.culprit || verdict.lost;
  end.has_lost_node = verdict.has_lost_node;
  end.request = verdict.request;
  end.how = fmt::format("ended with status {}", end.status);
  if (verdict.culprit) {
    const Rank& culprit = ranks[static_cast<std::size_t>(*verdict.culprit)];
    end.how = fmt::format("rank {} {}", culprit.index, describe(culprit));
    end.culprit = culprit.index;
    end.node = culprit.node;
  } else if (verdict.lost) {
    end.node = verdict.lost->node;
  }
  if (end.has_failed) steps.fail(start + std::chrono::nanoseconds(verdict.failed_ns));
  end.duration = dtrain::base::Clock::now() - start;
  end.recovery = steps.recovery();
  end.checkpoint = newest_checkpoint(ranks);
  for (const Rank& rank : ranks) {
    end.is_left_behind |= rank.running();
    end.is_reporting |= rank.step >= 0 || !rank.committed_steps.empty() || rank.told.has_value();
    end.step = std::max(end.step, rank.step);
    end.committed_steps.update(rank.committed_steps);
  }
  return end;
}

}  // namespace launcher
