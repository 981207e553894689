// Facts about residues as tensors: which atoms a type has, where they are, and how they turn. Tables are arguments of
// the functions that need them, so a caller decides which types there are and on which device they are.
//
//   const ops::ResidueTables tables = all.to(at::TensorOptions(at::kDouble).device(device));
//   const at::Tensor exists = ops::residue_rows(tables.mask14, types);                          // [B, N] -> [B, N, 14]
//
// Slots: atoms of a residue have 14 slots (those of its type) or 37 (one for each name). Both begin with N, CA, C; O is
// slot 3 of 14 and slot 4 of 37, CB slot 4 of 14 and slot 3 of 37.
// Groups: a residue consists of 8 rigid groups: backbone, pre-omega, phi, psi, chi1 to chi4.
#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace colossal::ops {

constexpr int64_t kAtomSlots = 14, kAtomNames = 37, kRigidGroups = 8, kTorsions = 7, kChis = 4;

/// Facts about each of T residue types (20, and one without a name). Floating-point tensors have one dtype.
struct ResidueTables {
  at::Tensor group_frames;  ///< [T, 8, 3, 4]: R | t of a group in its parent at angle 0; finite if there is none
  at::Tensor group14;       ///< [T, 14] int64: the group of each slot; 0 if the type does not have the atom
  at::Tensor positions14;   ///< [T, 14, 3] Angstrom: places of atoms in their groups
  at::Tensor mask14;        ///< [T, 14]: 1 = the type has the atom
  at::Tensor names14;       ///< [T, 14] int64: the slot of 37 of each slot of 14; 0 if the type does not have the atom
  at::Tensor slots37;       ///< [T, 37] int64: the slot of 14 of each name; 0 if the type does not have the atom
  at::Tensor mask37;        ///< [T, 37]: 1 = the type has the atom
  at::Tensor chi_atoms;     ///< [T, 4, 4] int64: the four atoms of each chi, as slots of 37; 0 if there is none
  at::Tensor chi_mask;      ///< [T, 4]: 1 = the type has the chi
  at::Tensor chi_period;    ///< [T, 4]: 1 = turning by pi gives the same residue, with two atoms' names exchanged
  at::Tensor renamed14;     ///< [T, 14] int64: the slot whose name an atom gets in the other naming; else its own
  at::Tensor radii14;       ///< [T, 14] Angstrom: van der Waals radii
  /// [T, 14, 14] Angstrom: bounds of distances between atoms of one residue; both 0 if the type lacks one of them
  at::Tensor shortest14, longest14;
  int64_t glycine = 7, proline = 14;  ///< the types with rules of their own

  /// Returns tables whose floating-point tensors have the dtype of `options`, all on its device.
  ResidueTables to(const at::TensorOptions& options) const;
};

/// Returns the rows of a table [T, ...] for types [...] int64: [..., ...].
at::Tensor residue_rows(const at::Tensor& table, const at::Tensor& types);

/// Returns x with its dimension `dim` read through `slots`, of the sizes up to it: x [..., K, rest], slots [..., L]
/// -> [..., L, rest]. `rest` is the number of dimensions after `dim`.
at::Tensor picked(const at::Tensor& x, const at::Tensor& slots, int64_t rest);

}  // namespace colossal::ops
