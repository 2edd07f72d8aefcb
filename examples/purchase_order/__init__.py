"""A buyer's purchase order: nine steps through an ERP, a supplier, a bank and a carrier."""
