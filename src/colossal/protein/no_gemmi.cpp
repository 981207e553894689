// Stands in for gemmi_mmcif.cpp and gemmi_pdb.cpp in a build without gemmi. read_structure() asks reads_structures()
// first.
#include "colossal/protein/read_chain.h"
#include "colossal/protein/structure_reader.h"

namespace colossal::protein {

bool reads_structures() { return false; }

int type_of_residue(const std::string& name) { return type_of_name(name); }

ResidueKind kind_of_residue(const std::string&) { return ResidueKind::Other; }

Structure read_mmcif(const TextFile&) { return {}; }

Structure read_pdb(const TextFile&) { return {}; }

}  // namespace colossal::protein
