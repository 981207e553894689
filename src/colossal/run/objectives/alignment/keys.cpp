#include "colossal/run/objectives/alignment/keys.h"

namespace colossal::run {

void AlignmentKeys::fields(Fields& f) {
  f.choice("method", method, {"sft"}, "what the texts teach: sft = the answers of chats (supervised fine-tuning)");
  f.number("noise", noise, "",
           "NEFTune's alpha: training adds uniform noise of at most alpha / sqrt(tokens of the text x hidden) to "
           "embeddings; 0 = none",
           0);
}

}  // namespace colossal::run
