#include "dtrain/parallel/compress/rank_sum.h"

#include "dtrain/parallel/compress/compressed_sum.h"
#include "dtrain/parallel/compress/whole_sum.h"

namespace dtrain::parallel {

std::unique_ptr<RankSum> make_rank_sum(const RankSumSetup& setup, comm::ProcessGroup& group,
                                       const param::ArenaAllocator& allocate) {
  if (setup.compression.scheme.is_none() || group.size() == 1) {
    return std::make_unique<WholeSum>(group, setup.codec);
  }
  return std::make_unique<CompressedSum>(setup, group, allocate);
}

}  // namespace dtrain::parallel
