#include "colossal/fold/fold.h"

#include "colossal/comm/launch/device.h"
#include "colossal/comm/mesh.h"
#include "colossal/fold/alignment_input.h"
#include "colossal/fold/fold_input.h"
#include "colossal/fold/folded_files.h"
#include "colossal/fold/folder.h"
#include "colossal/fold/source_keys.h"
#include "colossal/run/model_source.h"
#include "colossal/run/program.h"
#include "colossal/run/saved_model.h"

namespace colossal::fold {
namespace {

FoldInput input_of(const Sequence& sequence, const models::ModelShape& shape, const AlignmentRows& rows) {
  if (!models::folding_of(shape).reads_alignments) return sequence_input(sequence, shape);
  return alignment_input(sequence, {}, shape, rows);
}

}  // namespace

std::vector<Folded> fold(comm::World& world, const std::string& from, const std::vector<Sequence>& sequences,
                         const FoldOptions& options) {
  options.check();
  const run::Program program = run::built_in();
  const models::ModelShape shape = run::find_source(from, program).shape;
  const SourceKeys keys = keys_of_source(from, program);
  FoldOptions of_source = options;
  if (!of_source.passes) of_source.passes = keys.passes;
  std::vector<FoldInput> inputs;
  for (const Sequence& sequence : sequences) inputs.push_back(input_of(sequence, shape, keys.rows));
  distributed::ParallelConfig layout;
  layout.pipeline.size = world.size();
  comm::Mesh mesh(world, layout.axes());
  const run::SavedModel saved = run::load_model(from, mesh, layout, comm::choose_device("auto", world.local_rank()),
                                                {.tokenizer = "none"}, program);
  Folder folder(*saved.model, mesh);
  std::vector<Folded> folded;
  for (const FoldInput& input : inputs) folded.push_back(folder.fold(input, of_source));
  return folded;
}

void write(const Folded& folded, const std::string& path) { protein::write_structure(structure_of(folded), path); }

}  // namespace colossal::fold
