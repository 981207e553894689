// The objectives of the library. Those without tables are the defaults of architectures.
#include "colossal/run/objectives/built_in.h"

#include "colossal/run/objectives/alignment/further_models.h"
#include "colossal/run/objectives/alignment/keys.h"
#include "colossal/run/objectives/alignment/policy_objective.h"
#include "colossal/run/objectives/alignment/reference.h"
#include "colossal/run/objectives/alignment/reference_keys.h"
#include "colossal/run/objectives/alignment/rollout_keys.h"
#include "colossal/run/objectives/alignment/scorer_keys.h"
#include "colossal/run/objectives/alignment/value_keys.h"
#include "colossal/run/objectives/diffusion/diffusion_keys.h"
#include "colossal/run/objectives/diffusion/drawn_clips.h"
#include "colossal/run/objectives/folding/folding_keys.h"
#include "colossal/run/objectives/reconstruction/reconstruction_keys.h"

namespace colossal::run {

Objectives built_in_objectives() {
  std::vector<ObjectiveRow> rows{
      {.name = "next-token", .make = make_next_token},
      {.name = "masked-token", .make = make_masked_token},
      {.name = "target", .make = make_target},
      {.name = "class", .make = make_class},
      {.name = "alignment",
       .tables = {{"alignment", AlignmentKeys{}},
                  {kReference, ReferenceKeys{}},
                  {kRollout, RolloutKeys{}},
                  {kReward, RewardKeys{}},
                  {kValue, ValueKeys{}}},
       .make = make_alignment,
       .complete = complete_alignment,
       .models = alignment_models},
      {.name = "diffusion",
       .tables = {{kDiffusion, DiffusionKeys{}}, {kVae, VaeKeys{}}, {kTextEncoder, TextEncoderKeys{}}},
       .make = make_diffusion,
       .complete = complete_diffusion,
       .models = diffusion_encoders},
      {.name = kReconstruction,
       .tables = {{kReconstruction, ReconstructionKeys{}}, {kDiscriminator, DiscriminatorKeys{}}},
       .make = make_reconstruction,
       .complete = complete_reconstruction,
       .models = reconstruction_models},
      {.name = kFolding, .tables = {{kFolding, FoldingKeys{}}}, .make = make_folding}};
  const std::vector<DataKeys> keys = built_in_data_keys();
  Objectives objectives;
  for (ObjectiveRow& row : rows) {
    for (const DataKeys& own : keys)
      if (own.objective == row.name) row.data = own.keys;
    objectives.add(std::move(row));
  }
  return objectives;
}

}  // namespace colossal::run
