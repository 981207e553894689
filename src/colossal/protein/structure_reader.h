// Reading of structures, with gemmi.
//
//   const protein::Structure structure = protein::read_structure("1abc.cif.gz");
//   for (const protein::StructureChain& chain : structure.chains) use(chain.id, protein::sequence_of(chain));
#pragma once
#include <string>

#include "colossal/protein/structure.h"

namespace colossal::protein {

/// Returns true if this build reads structures; false if it was built without gemmi.
bool reads_structures();

/// Returns true if the name of a file ends in .cif or .pdb, or in one of these and .gz.
bool is_structure_name(const std::string& path);

/// Reads the protein chains of a file in mmCIF or in the format of the Protein Data Bank, by the ending of its path,
/// plain or packed with gzip. `name` is that of the file, without its folder and endings.
///
/// - Of several models it takes the first, and of alternative residues and atoms those of the highest occupancy, of
///   equal ones the first.
/// - A chain has all residues of its sequence (`entity_poly_seq`, SEQRES), those without atoms too. A PDB file without
///   SEQRES gives the residues that have atoms. Residues with insertion codes are residues of their own.
/// - Ids of chains are those of the authors, as in papers and names of files; numbers and insertion codes of residues
///   are not kept.
/// - MSE is read as MET, and other modified residues as the type that they are made from, which may be unknown. Atoms
///   that the type does not have are left out. Unknown residues keep N, CA, C, O and CB.
/// - `resolution` is that of `refine`, `em_3d_reconstruction` or `reflns`, or of REMARK 2.
///
/// `notices` name the chains of DNA and other polymers, which are left out, and the number of NUL bytes. Ligands and
/// water are left out without a notice.
/// Errors ("protein"): another ending; a build without gemmi, with the packages that it needs. Errors ("mmcif", "pdb"),
/// with the file and if possible its line: no atom, no protein chain, a protein chain without a sequence in mmCIF,
/// residues that their sequence does not have, numbers that are none or not below 1e6, text that is no mmCIF. Errors:
/// read_text().
Structure read_structure(const std::string& path);

}  // namespace colossal::protein
