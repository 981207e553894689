#include "colossal/run/objectives/alignment/reference_keys.h"

namespace colossal::run {

void ReferenceKeys::fields(Fields& f) {
  f.text("from", from,
         "dpo, ipo, kto: the reference: a Hugging Face folder, a run folder, a GGUF file, or a preset with random "
         "weights; empty = the model from which the run starts");
  f.text("name", name, "preset with random weights in place of reference.from, for plans");
  f.flag("precompute", precompute,
         "compute the reference's log-probabilities of all samples before training, so that no step needs its weights");
  f.text("cache", cache,
         "with reference.precompute: folder of these log-probabilities, which runs may share; empty = in run.folder");
}

}  // namespace colossal::run
