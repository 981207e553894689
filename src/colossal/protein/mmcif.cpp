// Structures as mmCIF, with the categories of ModelCIF for confidences.
#include <algorithm>
#include <map>
#include <vector>

#include "colossal/base/error.h"
#include "colossal/base/join.h"
#include "colossal/protein/fasta.h"
#include "colossal/protein/structure_checks.h"

namespace colossal::protein {
namespace {

/// A kind of molecule: chains of one sequence.
struct Entity {
  const StructureChain* first;
  std::vector<std::string> chains;
};

/// Returns "loop_" with the names of a category.
std::string loop(const std::string& category, const std::vector<const char*>& names) {
  std::string text = "#\nloop_\n";
  for (const char* name : names) text += "_" + category + "." + name + "\n";
  return text;
}

std::string entities_text(const std::vector<Entity>& entities) {
  std::string all = loop("entity", {"id", "type", "pdbx_description"}),
              polymers = loop("entity_poly", {"entity_id", "type", "nstd_monomer", "pdbx_strand_id"}),
              residues = loop("entity_poly_seq", {"entity_id", "num", "mon_id", "hetero"}),
              chains = loop("struct_asym", {"id", "entity_id"});
  for (size_t i = 0; i < entities.size(); ++i) {
    const std::string id = std::to_string(i + 1);
    all += id + " polymer ?\n";
    polymers += id + " 'polypeptide(L)' no " + join(entities[i].chains, ",") + "\n";
    int64_t number = 0;
    for (const StructureResidue& residue : entities[i].first->residues)
      residues += concat(id, " ", ++number, " ", name_of_type(residue.type), " n\n");
    for (const std::string& chain : entities[i].chains) chains += chain + " " + id + "\n";
  }
  return all + polymers + residues + chains;
}

std::string atoms_text(const Structure& structure, const std::map<std::string, size_t>& entity_of) {
  std::string text = loop("atom_site", {"group_PDB",      "id",
                                        "type_symbol",    "label_atom_id",
                                        "label_alt_id",   "label_comp_id",
                                        "label_asym_id",  "label_entity_id",
                                        "label_seq_id",   "pdbx_PDB_ins_code",
                                        "Cartn_x",        "Cartn_y",
                                        "Cartn_z",        "occupancy",
                                        "B_iso_or_equiv", "auth_seq_id",
                                        "auth_comp_id",   "auth_asym_id",
                                        "auth_atom_id",   "pdbx_PDB_model_num"});
  int64_t serial = 0;
  for (const StructureChain& chain : structure.chains) {
    const std::string entity = std::to_string(entity_of.at(chain.id) + 1);
    for (size_t i = 0; i < chain.residues.size(); ++i) {
      const std::string residue = name_of_type(chain.residues[i].type), number = std::to_string(i + 1);
      for (const StructureAtom& atom : chain.residues[i].atoms) {
        const std::string name = name_of_atom37(atom.atom);
        text += "ATOM " + std::to_string(++serial) + " " + element_of_atom37(atom.atom) + " " + name + " . " + residue +
                " " + chain.id + " " + entity + " " + number + " ? " + written_number(atom.position.x, 3) + " " +
                written_number(atom.position.y, 3) + " " + written_number(atom.position.z, 3) + " 1.00 " +
                written_number(atom.b_factor, 2) + " " + number + " " + residue + " " + chain.id + " " + name + " 1\n";
      }
    }
  }
  return text;
}

std::string confidences_text(const Structure& structure) {
  std::string text = loop("ma_qa_metric", {"id", "mode", "name", "software_group_id", "type"}) +
                     "1 global pLDDT . pLDDT\n2 local pLDDT . pLDDT\n" +
                     loop("ma_qa_metric_global", {"metric_id", "metric_value", "model_id", "ordinal_id"}) + "1 " +
                     written_number(mean_ca_b_factor(structure), 2) + " 1 1\n" +
                     loop("ma_qa_metric_local", {"label_asym_id", "label_comp_id", "label_seq_id", "metric_id",
                                                 "metric_value", "model_id", "ordinal_id"});
  int64_t ordinal = 0;
  for (const StructureChain& chain : structure.chains)
    for (size_t i = 0; i < chain.residues.size(); ++i)
      for (const StructureAtom& atom : chain.residues[i].atoms)
        if (atom.atom == kAtomCa)
          text += concat(chain.id, " ", name_of_type(chain.residues[i].type), " ", i + 1, " 2 ",
                         written_number(atom.b_factor, 2), " 1 ", ++ordinal, "\n");
  return text;
}

}  // namespace

std::string mmcif_text(const Structure& structure) {
  require_writable(structure, "mmcif");
  std::vector<Entity> entities;
  std::map<std::string, size_t> entity_of_sequence, entity_of_chain;
  for (const StructureChain& chain : structure.chains) {
    const auto [at, is_new] = entity_of_sequence.emplace(sequence_of(chain), entities.size());
    if (is_new) entities.push_back({&chain, {}});
    entities[at->second].chains.push_back(chain.id);
    entity_of_chain[chain.id] = at->second;
  }
  const std::string name = file_name_of(structure.name);
  return "data_" + (name.empty() ? "structure" : name) + "\n#\n_entry.id " + (name.empty() ? "structure" : name) +
         "\n_audit_conform.dict_name mmcif_ma.dic\n_audit_conform.dict_version 1.4.7\n" + entities_text(entities) +
         atoms_text(structure, entity_of_chain) + confidences_text(structure) + "#\n";
}

}  // namespace colossal::protein
