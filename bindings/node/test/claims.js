// Prints what the package believes of the C interface: `struct NAME SIZE`, `field STRUCT NAME OFFSET SIZE`, `number NAME VALUE`.
'use strict';

const koffi = require('koffi');
const { numbers, structs } = require('../abi.js');

for (const [name, type] of Object.entries(structs)) {
  console.log('struct', name, koffi.sizeof(type));
  for (const [field, member] of Object.entries(type.members)) {
    console.log('field', name, field, member.offset, koffi.sizeof(member.type));
  }
}
for (const [prefix, values] of Object.entries(numbers)) {
  for (const [name, value] of Object.entries(values)) console.log('number', prefix + name, value);
}
