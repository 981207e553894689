// Prints structures and comparisons, for the script that reads the same files with Biopython and TMscore.
//
// Usage: colossal_structure_probe read FILE...
//          prints a line for each: {"file", "resolution", "chains": [{"id", "sequence", "residues": [{"N": [x, y, z],
//          ...}]}], "notices"}
//        colossal_structure_probe compare FILE REFERENCE
//          prints {"residues", "rmsd", "lddt_ca", "tm", "gdt_ts"}; of files with several chains the first one counts
#include <cstdio>
#include <string>

#include "colossal/base/error.h"
#include "colossal/base/json.h"
#include "colossal/protein/comparison.h"
#include "colossal/protein/structure_reader.h"

namespace {

using namespace colossal;
using nlohmann::json;

json json_of(const std::string& file, const protein::Structure& structure) {
  json chains = json::array();
  for (const protein::StructureChain& chain : structure.chains) {
    json residues = json::array();
    for (const protein::StructureResidue& residue : chain.residues) {
      json atoms = json::object();
      for (const protein::StructureAtom& atom : residue.atoms)
        atoms[protein::name_of_atom37(atom.atom)] = {atom.position.x, atom.position.y, atom.position.z, atom.b_factor};
      residues.push_back(std::move(atoms));
    }
    chains.push_back({{"id", chain.id}, {"sequence", protein::sequence_of(chain)}, {"residues", std::move(residues)}});
  }
  return {{"file", file},
          {"resolution", structure.resolution},
          {"chains", std::move(chains)},
          {"notices", structure.notices}};
}

json compared(const std::string& file, const std::string& reference) {
  const auto trace = [](const std::string& path) {
    return protein::ca_trace(protein::read_structure(path).chains.at(0));
  };
  const protein::Comparison found = protein::compare(trace(file), trace(reference));
  return {{"residues", found.residues},
          {"rmsd", found.rmsd},
          {"lddt_ca", found.lddt_ca},
          {"tm", found.tm},
          {"gdt_ts", found.gdt_ts}};
}

}  // namespace

int main(int count, char** words) {
  try {
    if (count == 4 && std::string(words[1]) == "compare")
      std::printf("%s\n", compared(words[2], words[3]).dump().c_str());
    else
      for (int i = 2; i < count; ++i)
        std::printf("%s\n", json_of(words[i], protein::read_structure(words[i])).dump().c_str());
  } catch (const Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
