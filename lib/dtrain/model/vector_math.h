// Makes MKL's vector functions independent of which thread calls them first.
#pragma once

namespace dtrain::model {

/// Makes the first calls of exp, log, cos and sin of the process, on a few elements and thus on one
/// thread, while other callers wait. MKL selects their code path in the first call; if two threads
/// make it concurrently, one of them can get a low-accuracy path.
///
/// Threads: any; call it before such a function runs on several threads.
void warm_up_vector_math();

}  // namespace dtrain::model
