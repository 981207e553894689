#include "colossal/run/objectives/folding/folding_keys.h"

namespace colossal::run {

void FoldingWeights::fields(Fields& f) {
  f.number("fape", fape, "", "weight of the errors of CA in the frames of all backbones, the mean over layers", 0);
  f.number("side_chains", side_chains, "", "weight of the errors of all atoms in the frames of all groups", 0);
  f.number("chi", chi, "", "weight of the angles of side chains", 0);
  f.number("distogram", distogram, "", "weight of the distances of pairs", 0);
  f.number("masked_msa", masked_msa, "",
           "weight of the masked letters of the alignment; -1 = 2 if the model has that head, else 0", -1);
  f.number("plddt", plddt, "", "weight of the predicted LDDT, for chains with a resolution of .1 to 3 Angstrom", 0);
  f.number("pae", pae, "",
           "weight of the predicted errors of aligned points; -1 = 0.1 if the model has that head, else 0", -1);
  f.number("resolved", resolved, "", "weight of which atoms are resolved (fine-tuning: 0.01)", 0);
  f.number("violation", violation, "", "weight of violations of the stereochemistry (fine-tuning: 1)", 0);
}

void FoldingKeys::fields(Fields& f) {
  f.integer("crop", crop, "residues", "residues of a training sample; longer chains are cropped, shorter ones padded",
            1);
  f.integer("clusters", clusters, "rows", "rows of the clustered alignment, the chain included", 1);
  f.integer("extra", extra, "rows", "further rows of the alignment, which are not clustered", 1);
  f.integer("passes", passes, "passes",
            "most passes over a chain, with recycling; a training step draws a number from 1 to it", 1, 1024);
  f.number("clamp", clamp, "", "share of the backbone's loss whose errors are clamped at 10 Angstrom", 0, 1);
  f.number("masked", masked, "of the letters", "share of the letters of the clustered alignment that are masked", 0, 1);
  f.number("clip_sample", clip_sample, "",
           "largest norm of the gradient of one chain, before those of all chains are summed; 0 = off", 0);
  f.section("weights", weights, "weights of the terms of the loss");
}

}  // namespace colossal::run
