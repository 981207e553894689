#include "colossal/run/built_in_tables.h"

#include <utility>

#include "colossal/base/error.h"
#include "colossal/run/low_rank_keys.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/reference_keys.h"
#include "colossal/run/objectives/alignment/rollout_keys.h"
#include "colossal/run/objectives/alignment/scorer_keys.h"
#include "colossal/run/objectives/alignment/value_keys.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"
#include "colossal/run/objectives/folding/folding_keys.h"
#include "colossal/run/objectives/reconstruction/reconstruction_keys.h"

namespace colossal::run {

std::vector<DescribedTable> built_in_tables() {
  return {{"adapter", LowRankKeys{}, "low-rank adapters"},
          {"alignment", AlignmentKeys{},
           "fine-tuning on chats, preferences or scores; a config with this table selects the objective"},
          {"reference", ReferenceKeys{}, "the model with which methods of alignment compare the trained one"},
          {kRollout, RolloutKeys{}, "answers that ppo, grpo, rloo and reinforce++ draw from the trained model"},
          {kReward, RewardKeys{}, "what scores these answers: verifiers, a command, a model"},
          {kValue, ValueKeys{}, "ppo: the model of values"},
          {kDiffusion, DiffusionKeys{}, "models that draw pictures: noise levels, target and weights of the loss"},
          {kVae, VaeKeys{}, "what turns the pictures of a model that draws into latents and back"},
          {kTextEncoder, TextEncoderKeys{}, "what reads the captions of a model that draws"},
          {kReconstruction, ReconstructionKeys{}, "models that encode and decode pictures: weights of the loss"},
          {kDiscriminator, DiscriminatorKeys{}, "reconstruction.gan: the model that judges reconstructions"},
          {kFolding, FoldingKeys{}, "models that fold proteins: sizes of samples, passes, weights of the loss"}};
}

std::vector<KeyHelp> describe_tables(const std::vector<DescribedTable>& tables) {
  std::vector<KeyHelp> keys;
  for (const auto& [name, own, help] : tables)
    for (KeyHelp& key : describe_config(own)) {
      key.key = concat(name, ".", key.key);
      key.section = key.section.empty() ? name : concat(name, ".", key.section);
      if (key.section == name) key.section_help = help;
      keys.push_back(std::move(key));
    }
  return keys;
}

}  // namespace colossal::run
