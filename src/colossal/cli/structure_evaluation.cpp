#include "colossal/cli/structure_evaluation.h"

#include <cstdio>
#include <string>
#include <utility>

#include "colossal/base/error.h"
#include "colossal/base/json_fields.h"
#include "colossal/base/number.h"
#include "colossal/cli/compared_structures.h"
#include "colossal/cli/local_world.h"
#include "colossal/comm/agreement.h"
#include "colossal/data/folding/chain_folder.h"
#include "colossal/fold/alignment_input.h"
#include "colossal/fold/folded_files.h"
#include "colossal/fold/folder.h"
#include "colossal/fold/source_keys.h"

namespace colossal::cli {
namespace {

/// The sums of what is printed of each chain.
struct FoldingSums {
  int64_t chains = 0;
  protein::Comparison found{.residues = 0};
  double plddt = 0;

  void add(const protein::Comparison& one, double its_plddt) {
    ++chains;
    found.residues += one.residues;
    found.rmsd += one.rmsd, found.lddt_ca += one.lddt_ca, found.tm += one.tm, found.gdt_ts += one.gdt_ts;
    plddt += its_plddt;
  }
  /// Returns the line after the last chain.
  nlohmann::ordered_json means() const {
    const auto count = static_cast<double>(chains);
    return {{"chains", chains},           {"residues", static_cast<double>(found.residues) / count},
            {"rmsd", found.rmsd / count}, {"lddt_ca", found.lddt_ca / count},
            {"tm", found.tm / count},     {"gdt_ts", found.gdt_ts / count},
            {"plddt", plddt / count}};
  }
};

protein::Comparison compared_chain(const std::string& name, const fold::Folded& folded,
                                   const protein::StructureChain& reference) {
  try {
    return protein::compare(protein::ca_trace(fold::structure_of(folded)), protein::ca_trace(reference));
  } catch (const Error& error) {
    throw Error("evaluate", concat(name, ": ", error.message()));
  }
}

void print_chain(const std::string& name, const protein::Comparison& found, double plddt, bool as_json) {
  if (as_json) {
    nlohmann::ordered_json line{{"name", name}};
    line.update(json_of(found));
    line["plddt"] = plddt;
    std::puts(json_line(line).c_str());
  } else {
    std::printf("%s: %s, pLDDT %s\n", name.c_str(), text_of_comparison(found).c_str(), fixed_text(plddt, 2).c_str());
  }
  std::fflush(stdout);
}

void print_means(const FoldingSums& sums, bool as_json) {
  const nlohmann::ordered_json means = sums.means();
  if (as_json) return void(std::puts(json_line(means).c_str()));
  const auto shown = [&](const char* name, int decimals) { return fixed_text(means.at(name).get<double>(), decimals); };
  std::printf("%lld chains: mean RMSD %s A, lDDT-CA %s, TM-score %s, GDT-TS %s, pLDDT %s\n",
              static_cast<long long>(sums.chains), shown("rmsd", 3).c_str(), shown("lddt_ca", 4).c_str(),
              shown("tm", 4).c_str(), shown("gdt_ts", 4).c_str(), shown("plddt", 2).c_str());
}

}  // namespace

int evaluate_structures(const std::string& from, const std::string& folder, bool as_json, const LoadedModel& loaded,
                        const run::Program& program) {
  const bool speaks = loaded.speaks();
  const fold::SourceKeys keys = fold::keys_of_source(from, program);
  fold::Folder folds(*loaded.saved.model, loaded.mesh);
  const models::FoldingSizes model = models::folding_of(folds.shape());
  data::ChainFolder chains;
  comm::agree(loaded.mesh.all(), at::kCPU, [&] { chains = data::ChainFolder::open(folder, {}); });
  for (const std::string& notice : chains.notices)
    if (speaks) say(notice);
  FoldingSums sums;
  for (int64_t i = 0; i < std::ssize(chains.chains); ++i) {
    const std::string& name = chains.chains[static_cast<size_t>(i)].name;
    data::ChainContents contents;
    comm::agree(loaded.mesh.all(), at::kCPU,
                [&] { contents = chains.read(i, model.reads_alignments, model.templates > 0); });
    const fold::FoldInput input = model.reads_alignments
                                      ? fold::chain_input([&] { return contents.known; }, folds.shape(), keys.rows)
                                      : fold::sequence_input({name, {contents.known.sequence}}, folds.shape());
    const fold::Folded folded = folds.fold(input, {.passes = keys.passes});
    comm::agree(loaded.mesh.all(), at::kCPU, [&] {
      if (!speaks) return;
      for (const std::string& notice : contents.notices) say(notice);
      const protein::Comparison found = compared_chain(name, folded, contents.structure);
      print_chain(name, found, folded.plddt, as_json);
      sums.add(found, folded.plddt);
    });
  }
  if (speaks) print_means(sums, as_json);
  return 0;
}

}  // namespace colossal::cli
